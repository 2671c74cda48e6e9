"""Translation with a trained model: one graph from text to text, and its Python face."""
