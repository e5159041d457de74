"""Many runs: comparisons, pipelines, sweeps, tuning, advice and splits."""
