"""What ``model.py`` files are made of: one file a fault, each with one class to put before mlx-lm's own."""
