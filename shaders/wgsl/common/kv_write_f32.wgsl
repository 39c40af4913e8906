// Writes keys and values as f32. `index` is that of an even element.

fn store_key_pair(index: u32, even: f32, odd: f32) {
    k_pages[index] = bitcast<u32>(even);
    k_pages[index + 1u] = bitcast<u32>(odd);
}

fn store_value_pair(index: u32, even: f32, odd: f32) {
    v_pages[index] = bitcast<u32>(even);
    v_pages[index + 1u] = bitcast<u32>(odd);
}
