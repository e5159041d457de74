"""The paper of Chen, Zheng, Long and Su (2021), measured."""
