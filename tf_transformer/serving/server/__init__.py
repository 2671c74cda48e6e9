"""The local server: TensorFlow Serving's REST API, in this process."""
