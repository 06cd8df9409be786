"""Recording: what ``torch.export`` would leave out is lifted or refused, and failures are explained."""
