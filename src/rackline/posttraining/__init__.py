"""Reinforcement learning: rollouts, log-probabilities, updates and weight transfers."""
