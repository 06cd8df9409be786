"""What a run learns from: pairs of texts, series, and the order of examples."""
