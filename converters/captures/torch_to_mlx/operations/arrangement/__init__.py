"""Operations that move, choose or join elements."""
