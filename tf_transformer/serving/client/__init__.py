"""Clients of a served translator, by REST and by gRPC."""
