"""Text to ids and back, inside the TensorFlow graph."""
