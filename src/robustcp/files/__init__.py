"""Files out, for whoever writes some: what may be written, and whole or not at all."""
