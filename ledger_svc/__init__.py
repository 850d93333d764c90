"""The only writer: owns all durable truth, decides every change, answers as of any time."""
