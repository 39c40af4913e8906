// RMS norm folded into the product: the producer of x wrote x * gain and partial sums of x^2, the consumer multiplies
// its result by this factor. Zhang & Sennrich 2019, arXiv:1910.07467.

fn norm_factor(row: u32) -> f32 {
    var own = 0.0;
    for (var i = lane; i < shape.norm_parts; i += 8u) {
        let part = partials[row * shape.norm_parts + i];
        own += (part.x + part.y) + (part.z + part.w);
    }
    return inverseSqrt(cluster_sum(own) / f32(shape.norm_width) + shape.norm_eps);
}
