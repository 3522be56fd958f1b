"""Dense prediction at high resolution: a linear head on dense tokens, read from merged and restored ones."""
