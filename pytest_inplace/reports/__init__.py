"""What is found, as data, and the texts made of it. Knows neither torch nor pytest."""
