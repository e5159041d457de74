"""What `advise` is made of: held-out samples, candidates, estimates, a decision, words."""
