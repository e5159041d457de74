"""Pages of our own, which no paper has: defaults, rules, advice, large models and others."""
