"""Reinforcement learning of a trained model: rollouts, log-probabilities, updates, and weights back to the engines."""
