"""The judge: verdicts on candidates, reached without trusting them."""
