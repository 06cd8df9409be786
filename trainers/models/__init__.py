"""Models of the recipes: plain torch modules, each with a function that builds it from options."""
