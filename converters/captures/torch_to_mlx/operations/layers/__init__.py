"""Operations that layers of a network are made of."""
