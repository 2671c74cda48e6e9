"""Export of trained models to SavedModel and CTranslate2."""
