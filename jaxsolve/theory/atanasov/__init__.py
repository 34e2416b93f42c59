"""Atanasov, Bordelon & Pehlevan: silent alignment."""
