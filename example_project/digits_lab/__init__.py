"""Small models trained on the scikit-learn handwritten digits."""
