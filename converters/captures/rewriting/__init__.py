"""Operations that formats lack, computed by others: sums by letters, and what is put or joined where an index says."""
