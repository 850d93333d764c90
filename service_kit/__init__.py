"""What every service needs and no domain knows: serving, boundary, clients, settings, logs, tokens, names."""
