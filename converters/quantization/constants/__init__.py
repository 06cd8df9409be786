"""Constants of other formats for a quantized weight: proven by value; no graph is made here."""
