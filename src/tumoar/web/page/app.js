export function closeList() {}
export async function openList() {}
