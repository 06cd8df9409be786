"""The update, one file per framework; everything around it is shared."""
