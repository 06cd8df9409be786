"""Objectives: torch modules that return a loss, captured together with the model they train."""
