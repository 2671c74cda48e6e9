"""Trained models in the formats of other programs: SavedModel and CTranslate2."""
