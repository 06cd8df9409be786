"""Results: built beside their place, recorded file by file, locked, and published whole or not at all."""
