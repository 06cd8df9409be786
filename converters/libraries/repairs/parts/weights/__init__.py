"""Parts that mend which weights a class has."""
