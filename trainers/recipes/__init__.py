"""Recipes: training configurations by name, one YAML file each."""
