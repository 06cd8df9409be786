"""Every weight of a candidate explained by the values of the reference's."""
