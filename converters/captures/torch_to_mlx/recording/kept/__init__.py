"""What a module keeps in Python beside its state: recorded as it is, or refused where calls change it."""
