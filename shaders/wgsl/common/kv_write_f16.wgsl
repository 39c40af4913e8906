// Writes keys and values as f16, two to a word; no shader-f16 needed. `index` is that of an even element.

fn store_key_pair(index: u32, even: f32, odd: f32) {
    k_pages[index / 2u] = pack2x16float(vec2f(even, odd));
}

fn store_value_pair(index: u32, even: f32, odd: f32) {
    v_pages[index / 2u] = pack2x16float(vec2f(even, odd));
}
