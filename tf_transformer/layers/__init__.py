"""The layers of "Attention is all you need", in pure Keras 3."""
