"""From a trace to the rules of a map."""
