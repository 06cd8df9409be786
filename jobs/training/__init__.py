"""Training as users start it: by a recipe, or with what is in memory."""

from .recipes import default_run, preflight, require_folder_name, train

__all__ = ["default_run", "preflight", "require_folder_name", "train"]
