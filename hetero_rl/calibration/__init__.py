"""How far a backend's log-probabilities are from the trainer's, why, and up to what length that can be trained on."""
