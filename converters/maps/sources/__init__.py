"""Where the map of a model comes from: a table, a library's own loader, or what was learned."""
