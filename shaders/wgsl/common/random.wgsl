// Random numbers as a function of (seed, position, token), so that a draw depends neither on its company in the batch
// nor on the order in which a workgroup runs. One hash serves four neighbouring tokens.

fn stir(words: vec4u) -> vec4u {
    var v = words;
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    return v;
}

// pcg4d of Jarzynski and Olano 2020, "Hash Functions for GPU Rendering", JCGT 9(3), with a third round: after two,
// the pairs of neighbouring counters are still not quite even.
fn scramble(words: vec4u) -> vec4u {
    var v = stir(words * 1664525u + 1013904223u);
    v = stir(v ^ (v >> vec4u(16u)));
    return stir(v ^ (v >> vec4u(16u)));
}

// One stream per sequence and position. Mixed apart from the counter: neighbouring positions must not resemble
// neighbouring tokens.
fn stream_of(seed_low: u32, seed_high: u32, position: u32) -> vec4u {
    return scramble(vec4u(seed_low, seed_high, position, 0x9e3779b9u));
}

fn four_words(stream: vec4u, counter: u32) -> vec4u {
    return scramble(stream ^ (counter * vec4u(0x85ebca6bu, 0xc2b2ae35u, 0x27d4eb2fu, 0x165667b1u)));
}

// Standard Gumbel noise, -ln(e) with e = -ln(1 - v) and v = (word + 1/2) / 2^32. A rare token wins by a tiny e, and
// there 1 - v would round to 1, so the series keeps all 32 bits; elsewhere ~word gives 1 - v without cancellation.
fn gumbel_of(words: vec4u) -> vec4f {
    let v = (vec4f(words) + 0.5) * 0x1p-32f;
    let rest = (vec4f(~words) + 0.5) * 0x1p-32f;
    let series = v * (1.0 + v * (0.5 + v * (0.33333334 + v * 0.25)));
    return -log(select(-log(rest), series, words < vec4u(1u << 26u)));
}
