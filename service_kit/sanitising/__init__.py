"""Takes secrets and personal data out of text (G1): pure text work, done before a text is stored or sent."""
