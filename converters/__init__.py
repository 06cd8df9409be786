"""Models, values, maps and captures: everything that moves a model from one framework to another."""
