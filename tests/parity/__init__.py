"""Device parity, on the stand-in device."""
