"""Small helpers that every layer uses: checks of arguments, types, progress, optional imports."""
