"""Figures of Bordelon, Atanasov & Pehlevan, "A dynamical model of neural scaling laws" (ICML 2024)."""
