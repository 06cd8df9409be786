"""What bundled recipes learn from and begin with: made on this machine, downloaded from nowhere."""
