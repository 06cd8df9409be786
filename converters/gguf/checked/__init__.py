"""GGUF files as a check sees them: their tensors under the names of a checkpoint, and copies to run."""
