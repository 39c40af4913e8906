// silu(x) = x / (1 + exp(-x)); for x far below zero exp overflows to infinity and the quotient is zero, as it should.

fn silu(x: f32) -> f32 {
    return x / (1.0 + exp(-x));
}
