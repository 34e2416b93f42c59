"""Figures of Atanasov, Bordelon & Pehlevan, "Neural networks as kernel learners" (ICLR 2022)."""
