"""The sections of a training configuration: one class each, strict, with its defaults."""
